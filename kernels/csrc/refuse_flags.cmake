# The arithmetic is defined to the bit (docs/arithmetic.md). A flag that lets the compiler reorder, contract
# or flush would change it silently, so an inherited one is an error, not a preference.
foreach(flags IN ITEMS "${CMAKE_CXX_FLAGS}" "${CMAKE_EXE_LINKER_FLAGS}" "${CMAKE_SHARED_LINKER_FLAGS}"
                       "${CMAKE_MODULE_LINKER_FLAGS}" "$ENV{CXXFLAGS}" "$ENV{CFLAGS}" "$ENV{LDFLAGS}")
  if(flags MATCHES "-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffinite-math|-ffp-contract=(fast|on)|-mdaz-ftz")
    message(FATAL_ERROR "'${flags}' changes floating-point results; unset CXXFLAGS, CFLAGS and LDFLAGS and build again")
  endif()
endforeach()
