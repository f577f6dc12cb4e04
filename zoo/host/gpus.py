"""Descriptions of GPUs, with which XLA compiles for them without having one.

The figures are NVIDIA's: memory and bandwidth from the data sheet of the H200, limits
of compute capability 9.0 from the CUDA C++ Programming Guide, and versions that support
it. The fields are those of XLA's `stream_executor.GpuTargetConfigProto`.
"""

H200_BYTES = 151_397_597_184  # 141 GiB of memory

TARGETS = {
  'h200': f"""
    platform_name: "CUDA"
    device_description_str: "NVIDIA H200"
    dnn_version_info {{ major: 9 minor: 10 }}
    gpu_device_info {{
      name: "NVIDIA H200"
      cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
      device_memory_size: {H200_BYTES}
      memory_bandwidth: {4800 * 10**9}
      l2_cache_size: {50 * 2**20}
      clock_rate_ghz: 1.98
      core_count: 132
      fpus_per_core: 128
      threads_per_warp: 32
      threads_per_block_limit: 1024
      threads_per_core_limit: 2048
      thread_dim_limit_x: 1024
      thread_dim_limit_y: 1024
      thread_dim_limit_z: 64
      block_dim_limit_x: {2**31 - 1}
      block_dim_limit_y: {2**16 - 1}
      block_dim_limit_z: {2**16 - 1}
      registers_per_core_limit: {2**16}
      registers_per_block_limit: {2**16}
      shared_memory_per_core: {228 * 1024}
      shared_memory_per_block: {48 * 1024}
      shared_memory_per_block_optin: {227 * 1024}
      device_address_bits: 64
      driver_version: "13.0.0"
      runtime_version: "13.0.0"
      compile_time_toolkit_version: "13.0.0"
      dnn_version: "9.10.0"
    }}
  """
}
