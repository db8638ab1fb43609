#!/bin/bash
# What Spark starts in an executor's pod, as in Spark's own image.
set -e
[ "${1:-}" = executor ] || exec "$@"
options=()   # SPARK_JAVA_OPT_0, _1, … in order
for ((i = 0; ; i++)); do name=SPARK_JAVA_OPT_$i; [ -n "${!name+x}" ] || break; options+=("${!name}"); done
exec "$JAVA_HOME/bin/java" "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-/opt/conf}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
