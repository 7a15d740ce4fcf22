"""A Slurm cluster of one node on loopback: munged, slurmctld and slurmd in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
SBIN = "/usr/sbin"
CONFIGURATION = """
ClusterName=probe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=0
SlurmdParameters=config_overrides
KillWait=60
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=probe NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:1
PartitionName=work Nodes=ALL Default=YES MaxTime=1000 State=UP
"""


def missing() -> str | None:
    """Why there can be no cluster here; None if there can."""
    path = f"{os.environ['PATH']}:{SBIN}"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not there: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "starting munged and slurmd needs root"


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment variables with which Slurm's commands reach the cluster."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for path in (folder / "munge", key):
        shutil.chown(path, "munge", "munge")
    ports = [_free_port() for _ in range(2)]
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(host=host, folder=folder, controller=ports[0], node=ports[1])
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("NodeName=probe Name=gpu File=/dev/null\n")
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    munge = f"{folder}/munge"
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with (folder / f"{Path(command[0]).name}.output").open("ab") as log:
            started.append(
                subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
            )

    try:
        start(
            "setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", f"{SBIN}/munged",
            "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", "--num-threads=1",
        )  # fmt: skip
        _wait_for(lambda: (folder / "munge" / "socket").exists(), folder)
        start(f"{SBIN}/slurmctld", "-D", "-i")
        start(f"{SBIN}/slurmd", "-D", "-N", "probe")
        _wait_for(lambda: "idle" in _answer(environment, "sinfo", "--noheader", "-o", "%T"), folder)
        yield environment
    finally:
        # A job's processes outlive the daemons.
        _answer(environment, "scancel", "--quiet", "--me")
        _wait_for(lambda: not _answer(environment, "squeue", "--noheader"), folder, 90.0)
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answer(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    ).stdout


def _wait_for(there: object, folder: Path, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            logs = "\n".join(
                f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
                for path in sorted([*folder.glob("*.log"), *folder.glob("*.output")])
            )
            raise AssertionError(f"the cluster does not start:\n{logs}")
        time.sleep(0.1)
