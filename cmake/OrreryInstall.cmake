# SPDX-License-Identifier: Apache-2.0
# What is installed, in components: the program with its data, manual pages and completions; the window; the
# library for C++; the module for Python. CPack makes a .deb of each, and one archive of all.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS orrery RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT orrery)
foreach(folder profiles topologies scenarios)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/orrery COMPONENT orrery)
endforeach()
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT orrery)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT orrery)

# The program writes what shells and man know of it.
set(generated ${PROJECT_BINARY_DIR}/share)
add_custom_command(OUTPUT ${generated}/stamp
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${generated}/man
  COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}/man
  COMMAND orrery man --folder ${generated}/man
  COMMAND orrery completion bash > ${generated}/orrery.bash
  COMMAND orrery completion zsh > ${generated}/_orrery
  COMMAND orrery completion fish > ${generated}/orrery.fish
  COMMAND ${CMAKE_COMMAND} -E touch ${generated}/stamp
  DEPENDS orrery VERBATIM)
add_custom_target(orrery_shell ALL DEPENDS ${generated}/stamp)
install(DIRECTORY ${generated}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT orrery FILES_MATCHING PATTERN "*.1")
install(FILES ${generated}/orrery.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME orrery COMPONENT orrery)
install(FILES ${generated}/_orrery DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT orrery)
install(FILES ${generated}/orrery.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT orrery)

if(TARGET orrery-gui)
  install(TARGETS orrery-gui RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT gui)
endif()

# find_package(orrery): orrery::planner and what it stands on.
set(libraries orrery_core orrery_program orrery_sim orrery_planner)
install(TARGETS ${libraries} EXPORT orrery ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
foreach(library core program sim planner)
  set_target_properties(orrery_${library} PROPERTIES EXPORT_NAME ${library})
  target_include_directories(orrery_${library} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/orrery>)
  install(DIRECTORY ${library} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/orrery COMPONENT dev FILES_MATCHING PATTERN "*.h")
endforeach()
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/orrery)
install(EXPORT orrery NAMESPACE orrery:: FILE orrery-targets.cmake DESTINATION ${config} COMPONENT dev)
configure_package_config_file(cmake/orrery-config.cmake.in ${PROJECT_BINARY_DIR}/orrery-config.cmake INSTALL_DESTINATION ${config})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/orrery-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/orrery-config.cmake ${PROJECT_BINARY_DIR}/orrery-config-version.cmake
  DESTINATION ${config} COMPONENT dev)

set(CPACK_PACKAGE_NAME orrery)
set(CPACK_PACKAGE_VENDOR "Orrery")
set(CPACK_PACKAGE_CONTACT "Orrery developers <orrery@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ;DEB)
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_ORRERY_PACKAGE_NAME orrery)
set(CPACK_DEBIAN_ORRERY_PACKAGE_RECOMMENDS libopenblas0-pthread)
set(CPACK_DEBIAN_GUI_PACKAGE_NAME orrery-gui)
set(CPACK_DEBIAN_GUI_PACKAGE_DEPENDS "orrery (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME liborrery-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "orrery (= ${PROJECT_VERSION}), libfmt-dev, nlohmann-json3-dev, libboost-dev, libeigen3-dev")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-orrery)
if(pybind11_FOUND)  # a module is of one version of Python
  math(EXPR next "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "orrery (= ${PROJECT_VERSION}), python3 (>= ${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}), python3 (<< ${Python_VERSION_MAJOR}.${next})")
endif()
set(CPACK_COMPONENT_ORRERY_DESCRIPTION "Plans, simulates and runs the training of large models on GPU clusters.")
set(CPACK_COMPONENT_GUI_DESCRIPTION "The window that shows plans and timelines of Orrery.")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Orrery as a library for C++.")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Orrery as a module for Python.")
include(CPack)
