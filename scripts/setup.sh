#!/usr/bin/env bash
# Installs what the Makefile needs, and says nothing when it is there already.
#   setup.sh debs PACKAGE...          Debian packages
#   setup.sh venv                     the Python environment .venv
#   setup.sh requirements PACKAGE...  into .venv: these and what pyproject.toml asks for
#   setup.sh pip ARGUMENT...          pip install in .venv
#   setup.sh wheel ARGUMENT...        pip wheel, with the Python of .venv
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

fail() {
  echo "attnops: $1" >&2
  exit 2
}

is_installed() {
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed* ]]
}

install_debs() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    echo "attnops: not a Debian system; what these packages hold must be there: $*" >&2
    return
  fi
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  # A Python from elsewhere may bring its own venv.
  if [[ ! -x .venv/bin/python ]] && ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    missing+=(python3-venv)
  fi
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "packages are missing; install them as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get -qq update >/dev/null &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get failed; these packages are needed: ${missing[*]}"
}

make_venv() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python must be Python 3.11 or newer; PYTHON=... names another one"
  echo 'making .venv'
  "$python" -m venv .venv
}

pip_install() {
  .venv/bin/python -m pip --quiet --disable-pip-version-check install "$@"
}

install_requirements() {
  local requirements
  requirements=$(.venv/bin/python - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    pyproject = tomllib.load(file)
project = pyproject["project"]
extras = project.get("optional-dependencies", {})
print(*pyproject["build-system"]["requires"], *project.get("dependencies", []), sep="\n")
print(*extras.get("test", []), *extras.get("bench", []), *extras.get("docs", []), sep="\n")
PYTHON
  )
  echo 'installing Python packages in .venv'
  mapfile -t requirements < <(grep -v '^$' <<<"$requirements")
  pip_install "$@" "${requirements[@]}"
}

command=$1
shift
case $command in
  debs) install_debs "$@" ;;
  venv) make_venv ;;
  requirements) install_requirements "$@" ;;
  pip) pip_install "$@" ;;
  wheel) .venv/bin/python -m pip --quiet --disable-pip-version-check wheel "$@" ;;
  *) fail "setup.sh: unknown command $command" ;;
esac
