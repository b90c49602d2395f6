// One unit of the four: libtorch's headers, most of the work, are read once.
#include "profile.cpp"
#include "script.cpp"
#include "shim.cpp"
#include "trace.cpp"
