# The structs of the data plane, for its build with assertions.

include "_plane.pxd"
