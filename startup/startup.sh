#!/bin/bash
# Bootstrap of a benchmark VM: runs as root on every boot, the same bytes on every VM; what differs is read from metadata.
# It hands over to startup/agent and, whatever becomes of that, leaves a last word in the bucket and deletes the VM.
# There is no `set -e`: a command that fails must lead to finish, never past it.
# shellcheck disable=SC2329,SC2154 # functions are also called through retry, work, helper and trap; `read_into` assigns
dir=${BENCH_VM_DIR:-/var/lib/bench}
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
run_id='' signalled='' interrupted='' outcome=failed cause='' detail='' grace=40 seq=0 helpers=() me=$(printf %04x%04x $RANDOM $RANDOM)
say() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T boot: %s\n' -1 "$*"; }
http() { curl --silent --show-error --noproxy '*' --connect-timeout 10 --max-time "${BENCH_REQUEST_TIMEOUT_S:-30}" "$@"; }
retry() { # retry TRIES COMMAND...
  local tries=$1 try; shift
  for ((try = 1; try <= tries; try++)); do "$@" && return 0; ((try < tries)) && sleep "${BENCH_RETRY_PAUSE_S:-2}"; done
  return 1
}
# read_into NAME COMMAND...: NAME becomes what is printed. Once more after a signal, which may have ended COMMAND. While a
# signal is trapped this shell expands no `$(...)`: bash 5.2 takes the command of a trap that is due there for the text in it.
shopt -s lastpipe; read_into() { interrupted=''; "${@:2}" | read -rd '' "$1"; [[ -z $interrupted ]] || read_into "$@"; }
meta() { # the value of a metadata key; empty when there is none
  local answer; answer=$(http -w '\n%{http_code}' -H 'Metadata-Flavor: Google' "$metadata/$1") || return 1
  case ${answer##*$'\n'} in 200) printf '%s' "${answer%$'\n'*}" ;; 404) ;; *) return 1 ;; esac
}
# field JSON KEY: the first scalar of that name. Quotes inside a JSON string are escaped, so text cannot pose as a key.
field() {
  printf '%s' "$1" | tr '\n' ' ' | grep -oE "\"$2\"[[:space:]]*:[[:space:]]*(\"[^\"\\\\]*\"|[0-9.]+|true|false)" | head -n 1 |
    sed -E 's/^"[^"]*"[[:space:]]*:[[:space:]]*//; s/^"(.*)"$/\1/'
}
bearer() { printf 'Authorization: Bearer %s' "$(field "$(retry 3 meta instance/service-accounts/default/token)" access_token)"; }
upload() { # upload DATA OBJECT TYPE: DATA is text or @file, OBJECT is below runs/<run-id>/
  local object="runs/$run_id/$2"
  http --fail -o /dev/null -H "$(bearer)" -H "Content-Type: $3" --data-binary "$1" \
    "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=${object//\//%2F}"
}
event() { # event KIND DATA
  local now text; now=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ) seq=$((seq + 1))
  printf -v text '{"schema": 1, "run_id": "%s", "kind": "%s", "time": "%s", "writer": "boot-%s-%s", "seq": %d, "data": %s}' \
    "$run_id" "$1" "$now" "$attempt" "$me" "$seq" "$2"
  retry 3 upload "$text" "events/${now//[-:]/}-boot-$attempt-$me-$(printf %06d "$seq")-$1.json" application/json
}
roomy() { mkdir -p "$dir/room" && touch "$dir"/room/{1..9} && head -c 1000000 /dev/zero >"$dir/room/1"; local code=$?; rm -rf "$dir/room"; return "$code"; } 2>/dev/null
leave() { exit_if_stopped; cause=$1 detail=$2; say "$1: $2"; exit 1; }

# In a process group of its own, where a signal does not reach this script; elsewhere job control would make `wait`
# return for a worker that is only stopped.
spawn() { set -m; "$@" </dev/null & set +m; }
exit_if_stopped() { [[ ! -e $dir/deadline && -z $signalled ]] || exit 143; }
work() { # the one thing that the watchdog and a signal may end
  local code worker
  exit_if_stopped
  spawn "$@"; worker=$!; echo "$worker" >"$dir/worker"
  [[ -n $signalled ]] && kill -TERM -- "-$worker"
  while interrupted=''; wait "$worker"; code=$?; [[ -n $interrupted ]]; do helper stop_worker; done
  rm -f "$dir/worker"; return "$code"
}
stop_worker() { # TERM, then KILL, to whatever the worker is now
  local group; group=$(cat "$dir/worker" 2>/dev/null) || return
  kill -TERM -- "-$group"; sleep "$grace"; kill -KILL -- "-$group" 2>/dev/null
}
watchdog() { sleep "$1"; touch "$dir/deadline"; say "the deadline is near: stopping the work"; stop_worker; }
helper() { spawn "$@"; helpers+=("$!"); disown; }
on_signal() { local group; signalled=1 interrupted=1; { read -r group <"$dir/worker" && kill -TERM -- "-$group"; } 2>/dev/null; say "asked to stop"; }

last_word() { # what the agent would have said, had it lived
  local code=$1 file
  for file in "$dir"/events/pending/*.json; do
    [[ -e $file ]] || continue
    retry 3 upload "@$file" "events/${file##*/}" application/json || return
    mv "$file" "$dir/events/"
    [[ $file == *-finished.json ]] && touch "$dir/last-word"
  done
  [[ ! -e $dir/log.txt ]] || retry 3 upload "@$dir/log.txt" artifacts/log.txt text/plain || return
  [[ -e $dir/last-word ]] && return
  if [[ -z $signalled && $cause != disk_full ]] && ! roomy; then
    cause=disk_full detail="no room is left in $dir${detail:+: $detail}"
  elif [[ -z $cause && -e $dir/deadline ]]; then
    outcome=timed_out cause=deadline detail="stopped ahead of the deadline of $deadline s"
  elif [[ -z $cause && $(retry 2 meta instance/preempted) == TRUE ]]; then
    outcome=preempted cause=preempted detail='preempted before the agent could say so'
  elif [[ -z $cause && -n $signalled ]]; then
    outcome=terminated
  elif [[ -z $cause ]]; then
    cause=agent_crashed detail="exit code $code; the log ends: $(tail -n 5 "$dir/log.txt" | tr -cd '[:alnum:] .,:;/()_=-' | tail -c 400)"
  fi
  [[ -z $cause ]] || event diagnosed "{\"cause\": \"$cause\", \"detail\": \"$detail\", \"phase\": \"boot\"}" || return
  event vm_exiting "{\"outcome\": \"$outcome\", \"exit_code\": $code}" && touch "$dir/last-word"
}
delete_self() {
  local status; status=$(http -o /dev/null -w '%{http_code}' -X DELETE -H "$(bearer)" \
    "$compute/compute/v1/projects/$project/zones/${zone##*/}/instances/$name")
  [[ $status == 2* || $status == 404 ]] || { say "deleting $name: HTTP $status"; return 1; }
}
finish() {
  local code=$? group; ((BASHPID == $$)) || return # a process that bash ends as it forks runs its parent's trap
  trap '' TERM INT HUP # from here on nothing may come between the VM and its end
  for group in "${helpers[@]}" $(cat "$dir/worker" "$dir/harness" 2>/dev/null); do kill -KILL -- "-$group" 2>/dev/null; done
  [[ ! -e $dir/container ]] || timeout 20 docker rm --force bench &>/dev/null
  # A failed upload must not keep a GPU alive: the deletion does not depend on it.
  [[ -e $dir/last-word || -z $run_id ]] || last_word "$code" || say "the last word could not be stored"
  say "deleting $name"
  retry "${BENCH_DELETE_TRIES:-150}" delete_self && return
  # A VM that is shut down stops paying for its GPU but goes on paying for its disk, and its deadline is cleared:
  # only when the API has refused for minutes, and never on a machine that only stands in for a VM.
  [[ -n ${BENCH_VM_DIR:-} && -z ${BENCH_LAST_RESORT:-} ]] || ${BENCH_LAST_RESORT:-shutdown -P now}
}

mkdir -p "$dir"; trap '' PIPE; [[ -s $dir/first-boot ]] || rm -rf "$dir"/{log.txt,events,last-word,rebooted} # an image's
exec > >(trap '' TERM INT HUP; tee -p -a "$dir/log.txt") 2>&1
trap finish EXIT; trap on_signal TERM INT HUP
rm -rf "$dir/deadline" "$dir/missing" "$dir/worker" "$dir/harness" "$dir/payload" "$dir/out" "$dir/container"

read_into name retry 10 meta instance/name; read_into zone retry 10 meta instance/zone; read_into project retry 10 meta project/project-id
read_into endpoints retry 10 meta instance/attributes/bench-endpoints
read_into storage field "$endpoints" storage; read_into compute field "$endpoints" compute
storage=${storage:-https://storage.googleapis.com} compute=${compute:-https://compute.googleapis.com}
say "$name in ${zone##*/}"
[[ -e $dir/last-word ]] && exit 0 # rebooted after the end: all that is left to do is to go
read_into spec retry 10 meta instance/attributes/bench-run; read_into payload retry 10 meta instance/attributes/bench-payload
for key in bucket object sha256; do read_into "$key" field "$payload" "$key"; done
for key in run_id attempt deadline_s; do read_into "$key" field "$spec" "$key"; done; deadline=${deadline_s%%.*}
[[ -n $run_id && -n $bucket && -n $object && -n $sha256 && $attempt =~ ^[0-9]+$ && $deadline =~ ^[0-9]+$ ]] ||
  leave unknown 'bench-run or bench-payload is missing from the metadata or lacks a key'
roomy || leave disk_full "no room is left in $dir"
# The server counts from the first boot; on a real VM that is as long ago as the kernel has been up.
up=0; [[ -n ${BENCH_VM_DIR:-} ]] || IFS=. read -r up _ </proc/uptime
printf -v now '%(%s)T' -1; [[ -s $dir/first-boot ]] || echo "$((now - up))" >"$dir/first-boot"
margin=$((deadline < 120 ? deadline * 500 : 60000)); read -r began <"$dir/first-boot"; after=$(((deadline - now + began) * 1000 - margin))
seconds() { printf -v "$1" '%d.%03d' $(($2 / 1000)) $(($2 % 1000)); }; seconds grace $((margin * 2 / 3)); seconds pause $((after > 0 ? after : 0)); helper watchdog "$pause"
able() { command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; }
apt() { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -y -o DPkg::Lock::Timeout=120 "$@"; }
lists() { local text; text=$(apt update 2>&1) || { [[ $text != *lists/lock* ]] && say "apt-get update: ${text##*$'\n'}"; }; }
install_python() { retry 60 lists; apt install python3 python3-venv python3-pip; } # no option of apt waits for the lists' lock
able || { read_into allowed field "$spec" allow_install; [[ $allowed == true ]] && work retry 2 install_python; }
able || leave no_python 'no python3 of version 3.8 or newer, and none could be installed'

download() { # no retry cures an object that is not there
  local status; status=$(http --max-time 120 -w '%{http_code}' -H "$(bearer)" -o "$dir/payload.tar.gz" \
    "$storage/storage/v1/b/$bucket/o/${object//\//%2F}?alt=media")
  case $status in 200) ;; 404) touch "$dir/missing" ;; *) say "payload: HTTP $status"; return 1 ;; esac
}
work retry 8 download || leave storage_unreachable "could not download $object"
[[ -e $dir/missing ]] && leave payload_missing "there is no object $object in bucket $bucket"
echo "$sha256  payload.tar.gz" | (cd "$dir" && sha256sum --check --status) || leave payload_checksum "$object does not have the sha256 it should have"
mkdir -p "$dir/payload"
tar -xzf "$dir/payload.tar.gz" -C "$dir/payload" --no-same-owner || leave payload_missing "could not unpack $object into $dir"
cd "$dir/payload" || leave payload_missing "$dir/payload is gone"
reboot() { trap - EXIT TERM INT HUP; ${BENCH_REBOOT:-systemctl reboot} && sleep "${BENCH_REBOOT_WAIT_S:-180}"; trap finish EXIT; leave no_cuda 'it did not reboot'; } # not its end
work env BENCH_VM_DIR="$dir" PYTHONUNBUFFERED=1 python3 -m startup.agent
code=$?; say "the agent ended with exit code $code"; ((code == 75)) && reboot; exit "$code"
