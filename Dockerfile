# The environment of requirements.lock, for machines and clusters that run containers (docs/cluster.md, "Containers").
# The checkout is not in the image: it is mounted at /study, and what runs is its code.
FROM python:3.11-slim-bookworm

# git names the commit that results carry
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git=1:2.39.* \
    && rm -rf /var/lib/apt/lists/*

COPY requirements.lock /environment/requirements.lock
RUN python -m pip install --no-cache-dir --require-hashes -r /environment/requirements.lock

# Any user may run it: caches of libraries go where every user can write, and git trusts the mounted checkout.
ENV PYTHONPATH=/study \
    HOME=/tmp \
    OMP_NUM_THREADS=1
RUN git config --system --add safe.directory /study
WORKDIR /study
CMD ["snakemake", "--cores", "8", "results/tables/main.csv"]
