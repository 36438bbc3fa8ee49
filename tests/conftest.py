from hypothesis import settings

pytest_plugins = ["pytester"]

# The same examples in every run, whatever the machine is doing.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")
