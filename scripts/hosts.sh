#!/usr/bin/env bash
# Simulates several hosts on one machine: network namespaces on a bridge, each with its own hostname, address and
# bandwidth RATE. Needs root.
#   source scripts/hosts.sh; make_hosts COUNT RATE; on_host 0 COMMAND ...; mpirun_on COUNT PROGRAM ...
# Everything is removed when the shell exits.

tag=uw$$

make_hosts() {
  local count=$1 rate=$2 host
  hosts=$count
  trap remove_hosts EXIT
  ip link add "$tag-br" type bridge
  ip link set "$tag-br" up
  for ((host = 0; host < count; host++)); do
    ip netns add "$tag-$host"
    ip link add "$tag-$host" type veth peer name eth0 netns "$tag-$host"
    ip link set "$tag-$host" master "$tag-br" up
    ip -n "$tag-$host" address add "10.213.77.$((host + 1))/24" dev eth0
    ip -n "$tag-$host" link set eth0 up
    ip -n "$tag-$host" link set lo up
    # The usual congestion control of Linux, whatever the settings of this machine.
    ip netns exec "$tag-$host" sysctl -qw net.ipv4.tcp_congestion_control=cubic \
      net.ipv4.tcp_slow_start_after_idle=0 2> /dev/null || true
    # Limits what a host sends. Because every host has this limit, it holds in both directions.
    tc -n "$tag-$host" qdisc add dev eth0 root tbf rate "$rate" burst 256k latency 2ms
  done
  agent=$(mktemp)
  # mpirun calls this script instead of ssh.
  cat > "$agent" <<EOF
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$((\${1##*.} - 1)); shift
exec ip netns exec "$tag-\$host" unshare -u sh -c "hostname host-\$host; \$*"
EOF
  chmod +x "$agent"
}

remove_hosts() {
  local host
  for ((host = 0; host < hosts; host++)); do
    ip netns pids "$tag-$host" 2> /dev/null | xargs -r kill 2> /dev/null || true
    ip netns delete "$tag-$host" 2> /dev/null || true
  done
  ip link delete "$tag-br" 2> /dev/null || true
  rm -f "$agent"
}

address_of() { echo "10.213.77.$(($1 + 1))"; }

on_host() {
  local host=$1
  shift
  ip netns exec "$tag-$host" unshare -u sh -c 'hostname "host-$0"; exec "$@"' "$host" "$@"
}

# Runs one rank on each host.
mpirun_on() {
  local count=$1 list="" host
  shift
  for ((host = 0; host < count; host++)); do list+="${list:+,}$(address_of "$host"):1"; done
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 on_host 0 timeout 300 mpirun \
    --mca plm_rsh_agent "$agent" --mca routed direct --mca pml ob1 --mca btl tcp,self \
    --mca btl_tcp_if_include 10.213.77.0/24 --mca oob_tcp_if_include 10.213.77.0/24 \
    --host "$list" -np "$count" --map-by node ${MPI_ARGS:-} "$@"
}
