# syntax=docker/dockerfile:1
# An image that trains: on a CPU, TPUs or NVIDIA GPUs.
#
#   docker build --build-arg EXTRA=tpu --tag icl-zoo:tpu .
#   docker run --rm --volume "$PWD/runs:/runs" icl-zoo:tpu \
#       main --config=configs/yq_lsa.py --workdir=/runs/yq_lsa
#
# EXTRA is cpu, tpu or cuda13; for GPUs add --gpus=all, on a TPU VM --privileged
# --network=host. A workdir may also be in a bucket: --workdir=gs://bucket/runs/yq_lsa.
# `xpk workload create` runs it on slices of a GKE cluster: docs/scaling.md has the command.
FROM python:3.11-slim
ARG EXTRA=cpu
WORKDIR /icl-zoo
COPY . .
RUN case "$EXTRA" in \
      cpu) target=".[gcs]" ;; \
      tpu|cuda13) target=".[gcs,$EXTRA]" ;; \
      *) echo "EXTRA is '$EXTRA'; it must be cpu, tpu or cuda13" >&2; exit 2 ;; \
    esac \
    && pip install --no-cache-dir --constraint constraints.txt --editable "$target"
# No user of its own: TPUs are devices that only root may open, and a shared workdir
# belongs to whoever has mounted it.
WORKDIR /
# An editable install finds the commands, which stay in /icl-zoo, from any folder.
ENTRYPOINT ["python", "-m", "launch"]
