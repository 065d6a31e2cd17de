# A driver that was killed leaves Snakemake's lock behind, and the plain command would refuse to start. Each driver holds
# a lock of the operating system for as long as it lives; who gets it knows that no other driver lives, and may clear
# what a dead one left. With a living driver nothing is cleared, and Snakemake refuses as it should.
import fcntl

# A dry run locks nothing, and neither does the Snakemake of a job, which may run on another machine.
if workflow.is_main_process and not workflow.dryrun:
    Path(".snakemake").mkdir(exist_ok=True)
    DRIVER = open(".snakemake/driver", "w")
    try:
        fcntl.flock(DRIVER, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in Path(".snakemake/locks").glob("*.lock"):
            left.unlink()
        # Snakemake knows a method's predictions by their manifest. One that lists a file which is gone or cut off is not true
        # and is taken away, so that whoever needs the predictions has that file, and no other, made again.
        for output in lost_outputs((Path(declared(job)), Path(RUN.format(**job._asdict())), job.method) for job in of_all(PLAN.jobs)):
            output.unlink(missing_ok=True)
    except OSError:
        pass
