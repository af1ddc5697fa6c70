#!/bin/bash
# A task of a fleet on Google Cloud Batch: the same bytes in every job; what differs comes in variables. It fetches the
# payload once for each machine, and hands over to startup/batch, which runs bootstrap and agent as they are.
dir=${BENCH_VM_DIR:-/var/lib/bench}/batch
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
storage=${BENCH_STORAGE:-https://storage.googleapis.com}
payload=$dir/payload-$BENCH_PAYLOAD

say() { printf '%s task: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*"; }
http() { curl --silent --show-error --fail --noproxy '*' --connect-timeout 10 --max-time 120 "$@"; }
retry() { # retry TRIES COMMAND...
  local tries=$1 try; shift
  for ((try = 1; try <= tries; try++)); do "$@" && return 0; ((try < tries)) && sleep "${BENCH_RETRY_PAUSE_S:-2}"; done
  return 1
}
token() { # the machine's account speaks for itself; nothing of it is printed
  http -H 'Metadata-Flavor: Google' "$metadata/instance/service-accounts/default/token" |
    sed -n 's/.*"access_token"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p'
}
download() {
  http -H "Authorization: Bearer $(token)" -o "$fresh.tar.gz" \
    "$storage/storage/v1/b/$BENCH_BUCKET/o/payloads%2F$BENCH_PAYLOAD.tar.gz?alt=media"
}

mkdir -p "$dir" || exit 1
command -v python3 >/dev/null || { say "no python3 on this image: choose one that has it"; exit 1; }
if [[ ! -e $payload/.whole ]]; then
  fresh=$payload.$$
  retry 8 download || { say "could not download the payload $BENCH_PAYLOAD"; exit 1; }
  echo "$BENCH_PAYLOAD  $fresh.tar.gz" | sha256sum --check --status || { say "the payload is not what was asked for"; exit 1; }
  mkdir -p "$fresh" && tar -xzf "$fresh.tar.gz" -C "$fresh" --no-same-owner && touch "$fresh/.whole" || exit 1
  rm -rf "$payload" "$fresh.tar.gz" && mv "$fresh" "$payload" || exit 1
fi
cd "$payload" || exit 1
PYTHONUNBUFFERED=1 exec python3 -m startup.batch.task "$dir"
