"""A training job that never ran, and the trace that the PyTorch profiler would have written of it.

`nodes` is what a step may be made of, `kernels` what runs on the device, `model` the step of a language model under
data parallelism, `simulate` plays it on a host and a device, `kineto` writes rows as kineto does.
"""
