# An image for Airflow's components and the writers they launch, in the shape of an Astro project: dags/, include/,
# plugins/ and spark_apps/ over a base image. Its steps are the make targets that a checkout uses.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 frazil \
 && install --directory --owner frazil /opt/frazil
USER frazil
WORKDIR /opt/frazil

ENV FRAZIL_JARS=/opt/frazil/.jars \
    FRAZIL_STREAMS=/opt/frazil/include/streams \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/frazil/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/frazil/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    PYTHONPATH=/opt/frazil \
    PATH=/opt/frazil/.venv/bin:${PATH}

COPY --chown=frazil Makefile pyproject.toml requirements.in requirements.txt README.md ./
COPY --chown=frazil include include
RUN make setup
COPY --chown=frazil spark_apps spark_apps
COPY --chown=frazil plugins plugins
COPY --chown=frazil dags dags

# The component comes from the deployment: api-server, scheduler, dag-processor or triggerer.
ENTRYPOINT ["airflow"]
CMD ["version"]
