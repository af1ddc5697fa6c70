#!/usr/bin/env bash
# What a machine of a rehearsal tries, with its own account's rights: it reports what it was answered, then deletes itself.
set -u
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
ask() { curl -sf --retry 8 --retry-all-errors --retry-delay 2 -H 'Metadata-Flavor: Google' "$metadata/$1"; }
field() { python3 -c 'import json,sys; print(json.loads(sys.argv[1]).get(sys.argv[2], sys.argv[3]))' "$1" "$2" "$3"; }
told=$(ask instance/attributes/bench-probe)
where=$(ask instance/attributes/bench-endpoints 2>/dev/null || echo '{}')
storage=$(field "$where" storage https://storage.googleapis.com)
compute=$(field "$where" compute https://compute.googleapis.com)
bucket=$(field "$told" bucket '') run=$(field "$told" run '') other=$(field "$told" other '')
token=$(python3 -c 'import json,sys; print(json.load(sys.stdin)["access_token"])' < <(ask instance/service-accounts/default/token))
name=$(ask instance/name) project=$(ask project/project-id) zone=$(ask instance/zone); zone=${zone##*/}
status() { curl -s -o /dev/null -w '%{http_code}' --max-time 30 -H "Authorization: Bearer $token" "$@"; }
write() { status -X POST -H 'Content-Type: text/plain' --data-binary x "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=$1"; }
read_() { status "$storage/storage/v1/b/$bucket/o/$1?alt=media"; }
driver=none
if [ "$(field "$told" driver '')" = yes ]; then
  for _ in $(seq 60); do driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) && break; driver=none; sleep 5; done
fi
report=$(printf '{"own":%s,"ledger":%s,"ledger_read":%s,"plan":%s,"client":%s,"list":%s,"other":%s,"driver":"%s","uptime":%s}' \
  "$(write "runs%2F$run%2Fevents%2Fprobe")" "$(write "$run-ledger")" "$(read_ ledger%2Fledger.json)" \
  "$(write "runs%2F$run%2Fplan.json")" "$(write "runs%2F$run%2Fevents%2F20261121T040000.000000Z-client-000000-000001-probe.json")" \
  "$(status "$storage/storage/v1/b/$bucket/o?prefix=runs%2F$run")" \
  "$(status -X DELETE "$compute/compute/v1/projects/$project/zones/$zone/instances/$other")" \
  "$driver" "$(cut -d' ' -f1 /proc/uptime)")
for _ in 1 2 3; do
  curl -sf -X POST -H "Authorization: Bearer $token" -H 'Content-Type: application/json' --data-binary "$report" \
    "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=runs%2F$run%2Fartifacts%2F$name.json" >/dev/null && break
  sleep 2
done
status -X DELETE "$compute/compute/v1/projects/$project/zones/$zone/instances/$name" >/dev/null
