#!/bin/sh
# Create a base image for BASE of the Dockerfile if no image registry can be reached: Python 3.11 of Debian from a package mirror.
#
#   sudo docs/deploy/debian_base.sh localhost/python-base [MIRROR]
#
# Needs root, debootstrap and buildah.
set -eu
name=${1:?name of the image}
mirror=${2:-http://deb.debian.org/debian}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" "$mirror"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
# Like Debian's slim image, leave out manual pages and translations, but not licenses.
rm -rf "$root"/usr/share/locale/* "$root"/usr/share/man/* "$root"/usr/share/info/*
find "$root"/usr/share/doc -type f ! -name copyright -delete
container=$(buildah --storage-driver vfs from scratch)
buildah --storage-driver vfs add --quiet "$container" "$root" /
buildah --storage-driver vfs commit --quiet --rm "$container" "$name"
