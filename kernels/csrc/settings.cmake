# What the module and the referee are compiled with, whichever of them is configured.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(arithmetic_flags -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fwrapv -fno-strict-aliasing)  # operators
set(host_flags -O2 -ffp-contract=off)  # what calls them: executor and referee
set(warning_flags -Wall -Wextra -Wno-psabi)

# The arithmetic is defined to the bit (docs/arithmetic.md). A flag that lets the compiler reorder, contract
# or flush would change it silently, so an inherited one is an error, not a preference.
foreach(flags IN ITEMS "${CMAKE_CXX_FLAGS}" "${CMAKE_EXE_LINKER_FLAGS}" "${CMAKE_SHARED_LINKER_FLAGS}"
                       "${CMAKE_MODULE_LINKER_FLAGS}" "$ENV{CXXFLAGS}" "$ENV{CFLAGS}" "$ENV{LDFLAGS}")
  if(flags MATCHES "-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffinite-math|-ffp-contract=(fast|on)|-mdaz-ftz")
    message(FATAL_ERROR "'${flags}' changes floating-point results; unset CXXFLAGS, CFLAGS and LDFLAGS and build again")
  endif()
endforeach()
