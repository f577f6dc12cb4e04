#!/usr/bin/env bash
# One run in N processes on the CPU of this machine, to try what a cluster will do:
#
#   launch/cluster/local.sh 4 --config=configs/yq_lsa.py --workdir=runs/four
#   JAX_NUM_CPU_DEVICES=2 launch/cluster/local.sh 4 --config=configs/yq_lsa.py
#
# JAX_NUM_CPU_DEVICES, a variable of JAX, is the number of devices per process (default 1).
# SIGTERM and Ctrl-C are passed on: all processes save at the same step and end, with
# exit code 143 or 130. Otherwise the exit code is that of the first process that failed;
# the others end by themselves, or are killed after 20 s. The GPUs of one machine need
# no second process: python -m launch.main uses them all. Needs bash 5.1.
set -uo pipefail

if ! [[ ${1-} =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 NUMBER_OF_PROCESSES --config=FILE [flags of launch.main]" >&2
  exit 2
fi
number=$1
shift
free='import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
port=$(python -c "$free")
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=${JAX_NUM_CPU_DEVICES:-1}

children=()
patience=() # a sleep, once a process has failed
send() { kill "$1" "${children[@]}" 2> /dev/null; }
trap 'send -TERM' TERM HUP
trap 'interrupted=130; send -TERM' INT
trap 'send -KILL; kill "${patience[@]}" 2> /dev/null; wait' EXIT

for ((id = 0; id < number; id++)); do
  python -m launch.main "$@" \
    --coordinator="127.0.0.1:$port" --num_processes="$number" --process_id="$id" &
  children+=($!)
done

failed=0
running=$number
while ((running > 0)); do
  wait -n -p child "${children[@]}" "${patience[@]}"
  code=$?
  # A signal ends `wait` although no child has ended.
  [[ -z ${child-} ]] && continue
  if [[ $child == "${patience-}" ]]; then
    patience=()
    send -KILL
    continue
  fi
  ((running--))
  for i in "${!children[@]}"; do
    [[ ${children[i]} == "$child" ]] && unset "children[i]"
  done
  if ((code && !failed)); then
    failed=$code
    sleep 20 &
    patience=($!)
  fi
done
((failed == 143)) && failed=${interrupted:-143}
exit "$failed"
