#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two network namespaces with host names of their own stand for two hosts, joined by one virtual cable. mpirun
# starts ranks in both, and what they compute equals what threads of one process compute.
#   two_hosts.sh ORRERY SCENARIOS FOLDER      exits 77 where it may not make namespaces
set -euo pipefail
orrery="$1" scenarios="$2" folder="$3"
skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "making network namespaces needs root"
command -v mpirun >/dev/null || skip "there is no mpirun (openmpi-bin)"
command -v ip >/dev/null || skip "there is no ip (iproute2)"
tag="orrery$$"
end() { ip netns del "$tag-a" 2>/dev/null || true; ip netns del "$tag-b" 2>/dev/null || true; }
trap end EXIT
ip netns add "$tag-a" 2>/dev/null || skip "network namespaces are not allowed here"
ip netns add "$tag-b"
nsenter --net="/run/netns/$tag-a" unshare --uts true 2>/dev/null || skip "network namespaces cannot be entered here"
ip link add "v$$a" netns "$tag-a" type veth peer name "v$$b" netns "$tag-b" 2>/dev/null || skip "there are no virtual cables (veth) here"
for side in a b; do
  [ $side = a ] && address=10.77.0.1 || address=10.77.0.2
  nsenter --net="/run/netns/$tag-$side" ip addr add $address/24 dev "v$$$side"
  nsenter --net="/run/netns/$tag-$side" ip link set "v$$$side" up
  nsenter --net="/run/netns/$tag-$side" ip link set lo up
done

rm -rf "$folder"
mkdir -p "$folder"
# What mpirun calls in place of ssh: AGENT HOST COMMAND...
cat >"$folder/agent" <<AGENT
#!/bin/sh
shift
exec nsenter --net=/run/netns/$tag-b unshare --uts sh -c "hostname host-b; \$*"
AGENT
chmod +x "$folder/agent"
launch() {
  nsenter --net="/run/netns/$tag-a" unshare --uts sh -c 'hostname host-a; exec "$@"' sh \
    mpirun --allow-run-as-root --host 10.77.0.1:2,10.77.0.2:2 -n 4 --mca plm_rsh_agent "$folder/agent" \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 --mca btl self,vader,tcp \
    --mca pml ob1 "$@"
}
for scenario in "$scenarios"/*.json; do
  for algorithm in direct naive ring tree halving-doubling hierarchical; do
    name="$(basename "$scenario" .json)-$algorithm"
    arguments="--steps 5 --collectives $algorithm --checkpoints $folder/$name"
    "$orrery" run "$scenario" --json $arguments-threads >"$folder/threads.json"
    launch "$orrery" run "$scenario" $arguments-hosts >"$folder/table.txt"
    cat "$folder/table.txt"
    [ "$(grep -c host-a "$folder/table.txt")" -eq 2 ] && [ "$(grep -c host-b "$folder/table.txt")" -eq 2 ] ||
      { echo "FAILED: the ranks are not two on each host"; exit 1; }
    for file in "$folder/$name"-threads/step-00000005/*; do
      cmp "$file" "$folder/$name-hosts/step-00000005/$(basename "$file")" || { echo "FAILED: $file differs"; exit 1; }
    done
  done
done

# The newest of this test's ranks: a seed tells them from those of others.
newest_rank() { pgrep -n -f "steps 100000 --seed $$ "; }
# The same with a rank killed: the hosts hear of it.
set +e
(sleep 3; kill -KILL "$(newest_rank)") &
launch "$orrery" run "$scenario" --steps 100000 --seed $$ --deadline 20 >/dev/null 2>"$folder/killed.txt"
code=$?
set -e
cat "$folder/killed.txt"
[ $code -ne 0 ] || { echo "FAILED: a killed rank went unnoticed"; exit 1; }
grep -Eq "rank [0-9] died|MPI lost|ended from outside" "$folder/killed.txt" || { echo "FAILED: nobody said why"; exit 1; }

# And with a rank frozen: who is heard before mpirun ends the job names it, and nobody else.
set +e
(sleep 3; frozen=$(newest_rank); tr '\0' '\n' <"/proc/$frozen/environ" |
  sed -n 's/^OMPI_COMM_WORLD_RANK=//p' >"$folder/frozen.rank"; kill -STOP "$frozen"; sleep 9; kill -KILL "$frozen" 2>/dev/null) &
launch "$orrery" run "$scenario" --steps 100000 --seed $$ --deadline 4 >/dev/null 2>"$folder/frozen.txt"
set -e
cat "$folder/frozen.txt"
rank=$(cat "$folder/frozen.rank")
grep -q "^orrery: rank $rank did not come to .* within 4000 ms" "$folder/frozen.txt" ||
  { echo "FAILED: nobody named rank $rank, which was frozen"; exit 1; }
! grep "^orrery: rank" "$folder/frozen.txt" | grep -v "^orrery: rank $rank did not come" ||
  { echo "FAILED: another rank than $rank, which was frozen, was named"; exit 1; }
echo "two hosts compute what threads compute"
