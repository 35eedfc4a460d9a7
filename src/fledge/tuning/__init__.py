"""Sweeps: search the settings of a training (`fledge tune`), on any number of workers and machines.

    sweep.py           the definition of a sweep, `sweep.json` in its folder, which all workers share
    ranges.py          `key=LOW..HIGH` and `key=a|b|c`, checked against the task's config
    storage.py         the study's storage: a journal file, PostgreSQL, or a gRPC proxy
    claims.py          which worker does which job: taken once, taken over when its worker has stopped
    worker.py          take a job, train it in a process, record its result
    trial_process.py   the process of one trial: train, evaluate, write the result
    search.py, population.py, confirmation.py     jobs: of the search, of population-based training, of further seeds
    summary.py, report.py                         `summary.json`, `best.yaml` and the report page

Only `summary` may be used by programs that show a sweep: it reads one file, and neither opens nor writes the study.
"""
