#!/bin/sh
# Installs Debian's Chromium for tests/browser, where there is none, apt-get is there and this user may.
# Quiet, and limited in time: a machine without a network loses half a minute, once.
for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
skipped() {
    echo "no Chromium here ($1): tests/browser will be skipped"
    exit 0
}
command -v apt-get >/dev/null 2>&1 || skipped "no apt-get to install it with"
if [ "$(id -u)" = 0 ]; then
    as=
elif sudo -n true >/dev/null 2>&1; then
    as="sudo -n"
else
    skipped "installing it takes root"
fi
quick="-qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10"
echo "installing Chromium for the tests of the page"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # options
$as timeout 30 apt-get $quick update >/dev/null 2>&1 || skipped "no package lists"
# shellcheck disable=SC2086 # options
$as timeout 300 apt-get $quick install -y --no-install-recommends chromium >/dev/null 2>&1 || skipped "apt-get has none"
