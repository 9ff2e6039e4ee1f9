# find_package(accelrt), with accelrt_ROOT set to what "accelrt config --cmake" prints, makes two targets:
# accelrt::accelrt links libaccelrt.so, with an rpath; accelrt::static compiles its functions into what links the target,
# which then finds accelrt in the Python that runs, and no library. The latter needs the language C.
get_filename_component(_accelrt_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET accelrt::accelrt)
  add_library(accelrt::accelrt SHARED IMPORTED)
  set_target_properties(accelrt::accelrt PROPERTIES
    IMPORTED_LOCATION "${_accelrt_package}/lib/libaccelrt.so"
    IMPORTED_SONAME "libaccelrt.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_accelrt_package}/include")
endif()
if(NOT TARGET accelrt::static)
  set(_accelrt_source "${CMAKE_CURRENT_BINARY_DIR}/accelrt_static.c")
  file(CONFIGURE OUTPUT "${_accelrt_source}" CONTENT "#include <accelrt_static.h>\n" @ONLY)
  add_library(accelrt::static INTERFACE IMPORTED)
  set_target_properties(accelrt::static PROPERTIES
    INTERFACE_SOURCES "${_accelrt_source}"
    INTERFACE_INCLUDE_DIRECTORIES "${_accelrt_package}/include"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
  unset(_accelrt_source)
endif()
unset(_accelrt_package)
