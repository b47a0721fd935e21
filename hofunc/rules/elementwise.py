import torch
from hofunc.rules.registry import *
aten = torch.ops.aten
define_elementwise(aten.exp.default, lambda x, y, r: y)
define_elementwise(aten.log.default, lambda x, y, r: (-1)**(r-1)*__import__('math').factorial(r-1)*x**(-r), domain=POSITIVE)
define_elementwise(aten.sin.default, lambda x, y, r: (torch.cos(x), -y, -torch.cos(x), y)[(r-1)%4])
define_elementwise(aten.relu.default, lambda x, y, r: (x>0).to(x.dtype), degree=1)
def tanh(x,y,r):
    if r==1: return 1-y*y
    if r==2: return -2*y*(1-y*y)
    if r==3: return (1-y*y)*(6*y*y-2)
    if r==4: return (1-y*y)*(16*y-24*y**3)
define_elementwise(aten.tanh.default, tanh)
define_constant(aten.detach.default)
def lse(x,dim,keep):
    m=x.amax(dim,True).detach(); s=(x-m).exp().sum(dim,True).log()+m
    return s if keep else s.squeeze(dim)
define_composite(aten._softmax.default, lambda x, dim, half: (x-lse(x,dim,True)).exp())
define_composite(aten.addmm.default, lambda c,a,b,*,beta=1,alpha=1: c+a@b)
define_constant(aten.amax.default)
