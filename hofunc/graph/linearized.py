"""`torch.func.linearize` while a function is recorded: the linear function pushes its tangents through anew.

torch traces that function once for the point where it was linearised, and cuts off what it holds of that point, so that
any derivative by the point is silently another, torch's own as well.
"""

from hofunc.graph.tape import is_recording
from hofunc.internals import push_tangents_of

push_tangents_of(is_recording)
