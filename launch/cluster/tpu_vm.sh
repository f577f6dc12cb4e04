#!/usr/bin/env bash
# One run on a Cloud TPU slice of one or more hosts. Edit the settings, or set them in the
# environment, then:
#
#   python -m launch.aot --config=configs/scale.py --topology=v5e:4x8   # does it fit?
#   launch/cluster/tpu_vm.sh keep --config=configs/scale.py
#
# `keep` creates the slice, installs COMMIT on all its hosts, starts the run, and stays
# until the run is finished: it replaces a pre-empted slice by a new one, and resumes a run
# that has ended early from its last checkpoint. Ctrl-C ends `keep` but not the run, and
# `keep` may be started again. Its parts, one by one:
#
#   launch/cluster/tpu_vm.sh create     # queues for the slice; `status` shows its state
#   launch/cluster/tpu_vm.sh install    # on all hosts, once the slice is ACTIVE
#   launch/cluster/tpu_vm.sh run --config=configs/scale.py
#   launch/cluster/tpu_vm.sh log        # the last lines of each host
#   launch/cluster/tpu_vm.sh stop       # SIGTERM: all hosts save at the same step
#   launch/cluster/tpu_vm.sh delete
#
# The slice may be of another size when it is created again.
set -euo pipefail

PROJECT=${PROJECT-my-project}
ZONE=${ZONE-us-west4-a}
NAME=${NAME-icl-zoo}
TYPE=${TYPE-v5litepod-32}       # 32 chips: the topology v5e:4x8 of launch.aot
RUNTIME=${RUNTIME-v2-alpha-tpuv5-lite} # v6e: v2-alpha-tpuv6e; v5p: v2-alpha-tpuv5
PRICE=${PRICE---spot}           # cheaper, but may be pre-empted at any time; or empty
SOURCE=${SOURCE-https://example.com/icl-zoo.git}
COMMIT=${COMMIT-$(git -C "$(dirname "$0")" rev-parse HEAD)} # must be in SOURCE
SHARE=${SHARE-10.0.0.2:/share}  # NFS, as of Filestore: all hosts need one workdir
WORKDIR=${WORKDIR-/mnt/share/runs/scale} # or gs://BUCKET/…, for which SHARE is not used
PAUSE=${PAUSE-60}               # seconds between two checks by `keep`
RESTARTS=${RESTARTS-20}         # `keep` gives up after this many

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$NAME" --project="$PROJECT" --zone="$ZONE" \
    --worker=all --command="$1"
}

queue() {
  gcloud compute tpus queued-resources "$1" "$NAME" \
    --project="$PROJECT" --zone="$ZONE" "${@:2}"
}

create() {
  queue create --node-id="$NAME" --accelerator-type="$TYPE" \
    --runtime-version="$RUNTIME" ${PRICE:+"$PRICE"}
}

status() { queue describe --format='value(state.state)'; }

delete() { queue delete --force --quiet; }

install() {
  local mount extra=tpu,gcs apt='sudo apt-get -o DPkg::Lock::Timeout=300'
  if [[ $WORKDIR != gs://* ]]; then
    extra=tpu
    mount="$apt install --yes --quiet nfs-common
      sudo mkdir -p /mnt/share
      mountpoint -q /mnt/share || sudo mount -t nfs $SHARE /mnt/share"
  fi
  on_all_hosts "set -e
      $apt update --quiet
      ${mount-}
      $apt install --yes --quiet python3.11-venv
      test -d icl-zoo || git clone --quiet $SOURCE icl-zoo
      cd icl-zoo && git fetch --quiet && git checkout --quiet --detach $COMMIT
      python3.11 -m venv .venv
      .venv/bin/pip install --quiet -c constraints.txt -e '.[$extra]'"
}

# JAX learns the other hosts from the slice itself. The run outlives this connection; its
# output is in run.log on each host, and its exit code in run.code.
run() {
  local flags
  flags=$(printf ' %q' "$@")
  on_all_hosts "cd icl-zoo && rm -f run.code
      (trap '' HUP
      .venv/bin/python -m launch.main --distributed --workdir=$WORKDIR$flags &
      echo \$! > run.pid
      wait \$!
      echo \$? > run.code) > run.log 2>&1 < /dev/null &"
}

# The state of the run on each host: its exit code, `on`, or `none`.
# shellcheck disable=SC2016 # the hosts expand it
ask='cd icl-zoo 2> /dev/null || { echo "run: none"; exit; }
  if test -f run.code; then echo "run: $(cat run.code)"
  elif kill -0 "$(cat run.pid)" 2> /dev/null; then echo "run: on"
  else echo "run: none"; fi'

look_after_the_run() { # of an ACTIVE slice; its exit code is 0 once the run is finished
  local said
  said=$(on_all_hosts "$ask" | grep '^run: ' | sort -u) || return 1 # a host is gone
  case $'\n'$said$'\n' in
    $'\nrun: 0\n')
      echo 'the run is finished'
      return 0
      ;;
    *$'\nrun: 75\n'*) ;; # the workdir is in use, as after a lost host: no mistake
    *$'\nrun: 2\n'*)
      on_all_hosts 'tail -n 3 icl-zoo/run.log'
      echo 'error: the command has a mistake' >&2
      exit 2
      ;;
  esac
  if [[ $said == *'run: on'* ]]; then return 1; fi # also while those of a lost host end
  if ((restarts++ > RESTARTS)); then
    echo "error: the run has ended early after $RESTARTS restarts" >&2
    exit 1
  fi
  echo "starting the run (${said//$'\n'/, })"
  if ! { install && run "$@"; }; then
    echo 'the run could not be started; trying again' >&2
  fi
  return 1
}

keep() {
  local restarts=0 state
  while true; do
    if ! state=$(status 2>&1); then
      [[ $state == *NOT_FOUND* ]] || echo "$state" >&2
    fi
    case "$state" in
      ACTIVE) if look_after_the_run "$@"; then return; fi ;;
      *NOT_FOUND*) create ;;
      SUSPENDED | FAILED)
        echo "the slice is $state: creating it again"
        delete
        create
        ;;
    esac
    sleep "$PAUSE"
  done
}

case "${1:-}" in
  create | status | install | delete) "$1" ;;
  run | keep) "$1" "${@:2}" ;;
  log) on_all_hosts 'tail -n 3 icl-zoo/run.log' ;;
  stop) on_all_hosts "kill -TERM \$(cat icl-zoo/run.pid)" ;;
  *)
    sed -n '2,21s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
