# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
install(TARGETS orrery RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET orrery-gui)
  install(TARGETS orrery-gui RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(folder profiles topologies scenarios)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/orrery)
endforeach()
