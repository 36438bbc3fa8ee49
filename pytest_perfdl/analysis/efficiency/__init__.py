"""How close operators and kernels come to what the hardware could do at best.

`operator_costs` has the arithmetic and the bytes of an operator, by the models of `cost_models`, `modeled_calls` those
of a trace, `peaks` what devices can do by their data sheets; `roofline` joins the two with measured times. `sm`
estimates from their launches how well kernels fill a device.
"""
