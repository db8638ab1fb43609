# An image for Airflow's components and the writers that they launch: the package with its extras, and a project's
# dags/ and include/. For executors, see docs/how-to/install.md.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 frazil \
 && install --directory --owner frazil /opt/frazil /opt/airflow /opt/airflow/logs \
      /var/lib/frazil /var/lib/frazil/declared \
 && printf '#!/bin/sh\nexec "$@"\n' > /entrypoint \
 && chmod 755 /entrypoint
USER frazil
WORKDIR /opt/frazil

ENV FRAZIL_JARS=/opt/frazil/.jars \
    FRAZIL_STREAMS=/opt/frazil/include/streams \
    FRAZIL_HOME=/var/lib/frazil \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/frazil/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    VIRTUAL_ENV=/opt/frazil/.venv \
    PATH=/opt/frazil/.venv/bin:${PATH}

# The layers that change least come first: the pinned dependencies, then the package, then the project.
# The link `spark_apps` is for tasks that an earlier image deferred: they name the writer's main by this path.
COPY --chown=frazil requirements.txt ./
COPY --chown=frazil pyproject.toml README.md ./
COPY --chown=frazil docs/runbook.md docs/runbook.md
COPY --chown=frazil include/frazil include/frazil
RUN python -m venv .venv \
 && pip install --no-cache-dir --constraint requirements.txt ".[airflow,postgres,quality,s3,sensitive,spark,transform]" \
 && python -m frazil.spark.jars fetch spark s3 postgres \
 && python -m frazil.spark.class_archive \
 && python -m frazil.ingest.precompile \
 && ln -s "$(python -c 'import frazil.spark_apps as apps; print(*apps.__path__)')" spark_apps
COPY --chown=frazil include include
COPY --chown=frazil dags dags

# The deployment gives the command: airflow api-server, scheduler, dag-processor or triggerer. Airflow's Helm chart
# starts shells and probes through /entrypoint.
ENTRYPOINT ["/entrypoint"]
CMD ["airflow", "version"]
