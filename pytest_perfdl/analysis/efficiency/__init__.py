"""How close operators and kernels come to what the hardware could do at best.

`operator_costs` has the arithmetic and the bytes of each operator, by the models of `cost_models`, `peaks` what devices
can do by their data sheets; `roofline` joins the two with measured times. `sm` estimates from their launches how well
kernels fill a device.
"""
