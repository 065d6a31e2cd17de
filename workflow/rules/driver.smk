# One driver per working folder (director/driver.py). Only a call that runs jobs takes charge: `onstart` is called by no dry
# run, summary or report, and by no Snakemake of a job. Snakemake's own locks are off (profiles: `nolock`), as a driver that is
# killed leaves them behind.
import logging

from snakemake.logging import logger, show_logs
from snakemake_interface_logger_plugins.common import LogEvent

from director.driver import is_in_charge, take_charge
from director.files import remove_temporaries
from director.progress import Job as ShownJob, Progress
from director.report.live import start_beside

onstart:
    try:
        take_charge()
    except InputError as error:
        raise WorkflowError(str(error))
    for folder in ("results", "data"):
        remove_temporaries(folder)  # of jobs that were killed
    show_progress()
    start_beside()


class Screen(logging.Handler):
    """In place of Snakemake's handler of the screen: a line per finished job (director/progress.py), errors, and whatever else it says.
    What starts, and why, with which files, is in the file that it names at the end."""

    SILENT = (LogEvent.JOB_STARTED, LogEvent.GROUP_INFO, LogEvent.GROUP_ERROR, LogEvent.SHELLCMD, LogEvent.RESOURCES_INFO, LogEvent.PROGRESS)

    def __init__(self, replaced, progress):
        super().__init__()
        self.replaced, self.progress = replaced, progress

    def emit(self, record):
        try:
            self.show(record, getattr(record, "event", None))
        except Exception:
            self.handleError(record)

    def show(self, record, event):
        if event == LogEvent.JOB_INFO:
            self.progress.start(record.jobid)
        elif event == LogEvent.JOB_FINISHED:
            self.progress.finish(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self.progress.fail(record.jobid, record.rule_msg or "", record.log)
            if workflow.output_settings.show_failed_logs:
                for line in show_logs(record.log):
                    self.progress.say(line)
        elif event not in self.SILENT and record.msg != "Select jobs to execute..." and self.replaced.filter(record):
            self.progress.say(self.replaced.format(record))


def epochs_of(name, wildcards):
    """How many epochs a training has; None for what is none."""
    if name == "train_backbone":
        return PLAN.training_options(wildcards.experiment, wildcards.backbone)["training"].epochs
    if name == "train_student":
        return PLAN.experiments[wildcards.experiment].student(wildcards.method).training.epochs


def seconds_of(job):
    """What a job took when it last ran."""
    record = workflow.persistence.metadata(job.output[0]) if job.output else None
    return record.endtime - record.starttime if record and record.starttime and record.endtime else None


def show_progress():
    """Put `Screen` in the place of Snakemake's own handler, unless the user asked for more of its words, or for less."""
    replaced = next((handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"), None)
    if replaced is None or workflow.output_settings.verbose or workflow.output_settings.printshellcmds or workflow.output_settings.quiet:
        return
    jobs = {
        job.jobid: ShownJob(job.rule.name, tuple(job.wildcards_dict.values()), str(Path(job.log[0])) if job.log else "", epochs_of(job.rule.name, job.wildcards), seconds_of(job))
        for job in workflow.dag.needrun_jobs()
    }
    screen = Screen(replaced, Progress(jobs, replaced.stream))
    logger.removeHandler(replaced)
    logger.addHandler(screen)

# Snakemake knows a method's predictions by their manifest. One that lists a file which is gone or cut off is not true and is
# taken away, so that whoever needs the predictions has that file, and no other, made again.
if workflow.is_main_process and not is_in_charge():
    try:
        lost = lost_outputs((Path(declared(job)), Path(RUN.format(**job._asdict())), job.method) for job in of_all(PLAN.jobs))
    except InputError as error:
        raise WorkflowError(str(error))
    for output in lost:
        output.unlink(missing_ok=True)
