from hofunc import rules
from hofunc.transforms import derivatives, hessian, hod, jacobian
