#!/usr/bin/env bash
# One run on a Cloud TPU slice, of one host or of many. Edit the settings, then:
#
#   python -m launch.aot --config=configs/scale.py --topology=v5e:4x8   # does it fit?
#   launch/cluster/tpu_vm.sh create     # queues for the slice; `status` tells its turn
#   launch/cluster/tpu_vm.sh install    # on all hosts, once the slice is ACTIVE
#   launch/cluster/tpu_vm.sh run --config=configs/scale.py
#   launch/cluster/tpu_vm.sh stop       # SIGTERM: all hosts save at one step
#   launch/cluster/tpu_vm.sh delete
#
# After a pre-emption: delete, create, install and the same `run` again, which resumes
# from the last checkpoint. The slice may be of another size then.
set -euo pipefail

PROJECT=my-project
ZONE=us-west4-a
NAME=icl-zoo
TYPE=v5litepod-32               # 32 chips: the topology v5e:4x8 of launch.aot
RUNTIME=v2-alpha-tpuv5-lite     # v6e: v2-alpha-tpuv6e; v5p: v2-alpha-tpuv5
PRICE=--spot                    # cheaper, and taken back at any time; or empty
SOURCE=https://example.com/icl-zoo.git
SHARE=10.0.0.2:/share           # NFS, as of Filestore: all hosts need one workdir
WORKDIR=/mnt/share/runs/scale

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$NAME" --project="$PROJECT" --zone="$ZONE" \
    --worker=all --command="$1"
}

queue() {
  gcloud compute tpus queued-resources "$1" "$NAME" \
    --project="$PROJECT" --zone="$ZONE" "${@:2}"
}

case "${1:-}" in
  create)
    queue create --node-id="$NAME" --accelerator-type="$TYPE" \
      --runtime-version="$RUNTIME" ${PRICE:+"$PRICE"}
    ;;
  status) queue describe --format='value(state.state)' ;;
  install)
    on_all_hosts "set -e
      sudo apt-get install --yes --quiet nfs-common python3.11-venv
      sudo mkdir -p /mnt/share
      mountpoint -q /mnt/share || sudo mount -t nfs $SHARE /mnt/share
      test -d icl-zoo || git clone --quiet $SOURCE icl-zoo
      cd icl-zoo && python3.11 -m venv .venv
      .venv/bin/pip install --quiet -c constraints.txt -e '.[tpu]'"
    ;;
  run)
    # JAX learns from the slice itself which the other hosts are. Under nohup the run
    # outlives this connection, and what it prints is in run.log on each host.
    flags=$(printf ' %q' "${@:2}")
    on_all_hosts "cd icl-zoo
      nohup .venv/bin/python -m launch.main --distributed --workdir=$WORKDIR$flags \
        > run.log 2>&1 < /dev/null & echo \$! > run.pid"
    ;;
  log) on_all_hosts 'tail -n 3 icl-zoo/run.log' ;;
  stop) on_all_hosts "kill -TERM \$(cat icl-zoo/run.pid)" ;;
  delete) queue delete --force --quiet ;;
  *)
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
