# find_package(accelrt), with accelrt_ROOT set to what "accelrt config --cmake" prints, makes the target accelrt::accelrt.
get_filename_component(_accelrt_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET accelrt::accelrt)
  add_library(accelrt::accelrt SHARED IMPORTED)
  set_target_properties(accelrt::accelrt PROPERTIES
    IMPORTED_LOCATION "${_accelrt_package}/lib/libaccelrt.so"
    IMPORTED_SONAME "libaccelrt.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_accelrt_package}/include")
endif()
unset(_accelrt_package)
