#!/bin/sh
# What docker-compose.yml runs before all else: secrets, made once, each in the volumes of those who read it.
#
#   secrets.sh FOLDER      FOLDER/server, FOLDER/redis, FOLDER/prometheus, FOLDER/grafana
#
# What is there stays. Nothing is printed. The files can be read by every user, for those of the containers differ; who
# may read them is a matter of who has the volume.
set -eu
cd "$1"
mkdir -p server redis prometheus grafana
umask 022

hex() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' && echo; }
base64_key() { head -c 32 /dev/urandom | base64; }
# Whole or not there: a file that was cut short would be a weak secret.
make() {
    [ -s "$2" ] || { "$1" > "$2.new" && mv "$2.new" "$2"; }
}
copy() {
    cp "$1" "$2.new" && mv "$2.new" "$2"
}

make hex redis/redis_password
copy redis/redis_password server/redis_password
make hex grafana/grafana_password
make base64_key server/state_keys
make hex server/api_keys
# Prometheus has a key of its own, which the server must know, too.
make hex prometheus/metrics_key
grep -qxF -f prometheus/metrics_key server/api_keys || cat prometheus/metrics_key >> server/api_keys
