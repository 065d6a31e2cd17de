#!/usr/bin/env bash
# One-machine SLURM for the tests: root, no systemd, cgroups or database. On Debian:
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
# slurm_node.sh start FOLDER | stop FOLDER       FOLDER holds its state and logs
#
# The configuration must be /etc/slurm/slurm.conf, since Snakemake's plugin drops SLURM_CONF. One that another hand wrote is
# a real cluster's: then nothing is done. `stop` takes ours away, as every start of Snakemake would wait for its controller.
set -euo pipefail

action=$1
folder=$(realpath -m "$2")
conf=/etc/slurm/slurm.conf
gres=/etc/slurm/gres.conf
mark="# written by tests/workflow/slurm_node.sh"

refuse_a_real_cluster() {
  if [ -e "$conf" ] && ! grep -qxF "$mark" "$conf"; then
    echo "$conf is not ours: this machine belongs to a cluster" >&2
    exit 3
  fi
}

write_configuration() {
  mkdir -p "$folder"/{state,spool} /etc/slurm
  # More CPUs and memory than there are (config_overrides): the tests ask how jobs are shared out, not how fast they are.
  # A job that is requeued starts once its credential has expired (cred_expire), two minutes by default.
  cat > "$conf" <<END
$mark
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/jobs.log
MinJobAge=600
ReturnToService=2
EnforcePartLimits=ALL
KillWait=5
GresTypes=gpu
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=16 RealMemory=256000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=500 State=UP
END
  touch "$folder"/gpu{0,1} # SLURM insists on files behind GPUs; plain ones do
  echo "AutoDetect=off
NodeName=node1 Name=gpu File=$folder/gpu[0-1]" > "$gres"
}

start_munge() {
  munge -n < /dev/null > /dev/null 2>&1 && return
  install -d -o munge -g munge -m 755 /run/munge
  if [ ! -s /etc/munge/munge.key ]; then
    (umask 077 && head -c 1024 /dev/urandom > /etc/munge/munge.key)
    chown munge:munge /etc/munge/munge.key
  fi
  setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
}

end_process() { # of a file with its id
  local process
  process=$(cat "$1" 2> /dev/null) || return 0
  kill "$process" 2> /dev/null || return 0
  for _ in $(seq 100); do
    kill -0 "$process" 2> /dev/null || return 0
    sleep 0.1
  done
  kill -9 "$process" 2> /dev/null || true
}

stop() {
  refuse_a_real_cluster
  if [ -e "$conf" ]; then
    timeout 5 scancel --user root > /dev/null 2>&1 || true
  fi
  end_process "$folder/slurmd.pid"
  end_process "$folder/slurmctld.pid"
  rm -f "$conf" "$gres"
}

start() {
  refuse_a_real_cluster
  write_configuration
  start_munge
  slurmctld
  slurmd -N node1
  for _ in $(seq 300); do
    if [ "$(sinfo -h -N -o %T 2> /dev/null)" = idle ]; then
      return
    fi
    sleep 0.1
  done
  tail -n 20 "$folder"/slurm*.log >&2
  stop
  exit 1
}

case $action in
  start) start ;;
  stop) stop ;;
  *)
    echo "start or stop, not $action" >&2
    exit 2
    ;;
esac
