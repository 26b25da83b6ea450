# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts: installs Debian packages that are missing, as root or with sudo.

packages_build="g++ cmake ninja-build ccache git ca-certificates libfmt-dev nlohmann-json3-dev libcli11-dev libboost-graph-dev libeigen3-dev libsqlite3-dev zlib1g-dev nettle-dev libopenblas0-pthread"
packages_gui="qt6-base-dev libqt6opengl6-dev qt6-svg-dev qt6-charts-dev libgl-dev fonts-dejavu-core"
packages_python="python3-dev pybind11-dev"
packages_site="python3 mkdocs"
packages_test="$packages_build $packages_python $packages_site libgtest-dev libboost-context-dev libvalijson-dev python3-numpy python3-yaml python3-torch libopenmpi-dev openmpi-bin libsimgrid-dev shellcheck iproute2 procps $packages_gui xvfb xauth"

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

install_missing() {
  local missing=""
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
  done
  [ -z "$missing" ] && return 0
  echo "installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  as_root apt-get install -y -qq --no-install-recommends $missing
}
