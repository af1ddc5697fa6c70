#!/bin/bash
# A task of `bench fleet check-batch`: the first ends, the second deletes its own machine once, the others wait to be ended.
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
http() { curl --silent --show-error --noproxy '*' --max-time 30 "$@"; }
meta() { http -H 'Metadata-Flavor: Google' "$metadata/$1"; }
case $BATCH_TASK_INDEX-$BATCH_TASK_RETRY_ATTEMPT in
  0-*) sleep "$BENCH_STEP_S" ;;
  1-0)
    sleep "$BENCH_STEP_S"
    token=$(meta instance/service-accounts/default/token | sed -n 's/.*"access_token"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p')
    zone=$(meta instance/zone) project=$(meta project/project-id) name=$(meta instance/name)
    http -X DELETE -H "Authorization: Bearer $token" \
      "${BENCH_COMPUTE:-https://compute.googleapis.com}/compute/v1/projects/$project/zones/${zone##*/}/instances/$name"
    sleep 3600 ;;
  1-*) exit 0 ;;
  *) sleep 36000 ;;
esac
