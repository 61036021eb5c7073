#!/usr/bin/env bash
# Install what the tests need beyond Python, where that is possible: RabbitMQ, PostgreSQL, a C compiler, Node.js with
# npm, a Java runtime for Spark, Chromium, curl and openssl. Quiet if all of it is there. Without root or apt it only says what is
# missing: the tests that need it skip then, and say so.
set -euo pipefail

missing=()
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing+=(rabbitmq-server)
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
command -v cc >/dev/null || missing+=(gcc libc6-dev python3-dev)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
command -v chromium >/dev/null || missing+=(chromium)
command -v curl >/dev/null || missing+=(curl)
command -v openssl >/dev/null || missing+=(openssl)
if ! command -v java >/dev/null; then
    # Debian 13 and later have no 17: any newer runtime serves Spark as well.
    if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        missing+=(openjdk-17-jre-headless)
    else
        missing+=(default-jre-headless)
    fi
fi
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt): the tests that need them will skip"
    exit 0
fi

echo "installing ${missing[*]}"
# Debian starts a service as soon as it is installed. The tests start their own RabbitMQ, so that nothing may start
# here; a policy that is there already stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# One package that cannot be had must not keep the others away.
apt-get update -q >"$log" 2>&1 || true
for package in "${missing[@]}"; do
    if ! apt-get install -q -y --no-install-recommends "$package" >>"$log" 2>&1; then
        echo "could not install $package: $(tail -n 1 "$log")"
    fi
done
rm -f "$log"
