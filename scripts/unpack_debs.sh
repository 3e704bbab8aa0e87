#!/usr/bin/env bash
# Unpacks Debian packages of another architecture or release into a folder; says nothing when they
# are there. apt runs with a configuration of its own: the system and its lists stay as they are.
#   unpack_debs.sh FOLDER RELEASE ARCHITECTURE PACKAGE...
# RELEASE is a code name, or `installed` for that of the system. The mirror is the system's. Of a
# PACKAGE such as libhwy1|libhwy1t64 the first name that the release has is taken. The exit status is
# 3 if the packages could not be had.
set -euo pipefail
folder=$1 release=$2 architecture=$3
shift 3

fail() {
  echo "attnops: $1" >&2
  exit 3
}

# The mirror and the release of the system's Debian sources; releases such as bookworm-updates do not
# count.
debian_sources() {
  apt-get indextargets --format '$(SITE) $(CODENAME)' \
    'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 'Component: main' 2>/dev/null |
    awk '$2 !~ /-/ && !found { print; found = 1 }'
}

# apt's lists of the system, where there are none yet.
update_lists() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" apt-get -qq update >/dev/null
}

wanted="$release $architecture $*"
[[ $(cat "$folder/.unpacked" 2>/dev/null) == "$wanted" ]] && exit 0
command -v apt-get dpkg-deb >/dev/null ||
  fail "not a Debian system: $* for $architecture cannot be unpacked into $folder"
read -r mirror installed < <(debian_sources) ||
  { update_lists && read -r mirror installed < <(debian_sources); } ||
  fail 'apt knows no Debian mirror; run apt-get update as root'
[[ $release == installed ]] && release=$installed

rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
touch "$apt/status"
echo "deb $mirror $release main" >"$apt/sources.list"
cat >"$apt/apt.conf" <<CONFIG
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::State::Status "$apt/status";
Dir::Cache "$apt/cache";
CONFIG
export APT_CONFIG=$apt/apt.conf

download() {
  apt-get -qq update -o APT::Update::Error-Mode=any || return
  local names=() package
  apt-cache pkgnames >"$apt/names"
  for package in "$@"; do
    names+=("$(grep -xE -m 1 "${package//+/\\+}" "$apt/names" || echo "${package%%|*}")")
  done
  cd "$apt/debs" && apt-get -qq download "${names[@]}"
}

echo "unpacking $* ($release, $architecture)"
(download "$@") >"$apt/log" 2>&1 || {
  cat "$apt/log" >&2
  fail "$* of $release for $architecture could not be downloaded; is there a network?"
}
for package in "$apt"/debs/*.deb; do dpkg-deb -x "$package" "$folder"; done
echo "$wanted" >"$folder/.unpacked"
