# One driver per working folder (director/driver.py). Only a call that runs jobs takes charge: `onstart` is called by no dry
# run, summary or report, and by no Snakemake of a job. Snakemake's own locks are off (profiles: `nolock`), as a driver that is
# killed leaves them behind.
from director.driver import is_in_charge, take_charge

onstart:
    try:
        take_charge()
    except InputError as error:
        raise WorkflowError(str(error))

# Snakemake knows a method's predictions by their manifest. One that lists a file which is gone or cut off is not true and is
# taken away, so that whoever needs the predictions has that file, and no other, made again.
if workflow.is_main_process and not is_in_charge():
    try:
        lost = lost_outputs((Path(declared(job)), Path(RUN.format(**job._asdict())), job.method) for job in of_all(PLAN.jobs))
    except InputError as error:
        raise WorkflowError(str(error))
    for output in lost:
        output.unlink(missing_ok=True)
