#!/usr/bin/env bash
# A real Kubernetes node on this machine, as root, in namespaces of its own (network, mounts, processes). When its first
# process ends, everything ends. Nothing of the host's network changes except one veth pair.
#
#   node.sh up            start the node; ends when it is Ready and DNS answers
#   node.sh load X.tar    import an image (a docker archive)
#   node.sh restart       end all processes of the node, and start it again with its state
#   node.sh down          end the node, and remove its state
#
# FRAZIL_KUBERNETES: folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy,
#   kubectl and coredns of Kubernetes 1.34. The host has containerd, runc, CNI's plugins, iptables, iproute2 and openssl.
# STATE: folder of this node, which needs 1 GB.
set -euo pipefail
BIN=${FRAZIL_KUBERNETES-}; STATE=${STATE:?}
NET=10.89.0        # NET.1 is the host and NET.2 the node, on the veth pair
PODS=10.245.0 SERVICES=10.97.0
NAME=frazil-k8s    # of the interface and the cgroup
self=$(realpath "$0")
export PATH=${BIN:+$BIN:}$PATH
kubectl() { command kubectl --kubeconfig "$STATE/admin.conf" "$@"; }

certificates() {   # one CA, the server's certificate, and one administrator, as whom all components act
  mkdir -p "$STATE/pki"; cd "$STATE/pki"
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=ca -keyout ca.key -out ca.crt 2>/dev/null
  openssl genrsa -out sa.key 2048 2>/dev/null
  sign() { # NAME SUBJECT EXTENSIONS
    openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
      -extfile <(echo "$3") 2>/dev/null
  }
  names=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
  sign apiserver /CN=kube-apiserver "subjectAltName=$names,IP:127.0.0.1,IP:$NET.2,IP:$SERVICES.1"
  sign admin /O=system:masters/CN=admin "extendedKeyUsage=clientAuth"
  cat > "$STATE/admin.conf" <<YAML
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: node, user: admin}}]
clusters: [{name: node, cluster: {server: "https://$NET.2:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: admin, user: {client-certificate: $STATE/pki/admin.crt, client-key: $STATE/pki/admin.key}}]
YAML
}

configuration() {
  mkdir -p "$STATE"/{cni,kubelet,log,containerd}
  cat > "$STATE/containerd.toml" <<TOML
version = 2
root = "$STATE/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true     # without CAP_SYS_RESOURCE a score cannot be lowered
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$STATE/cni"
TOML
  cat > "$STATE/cni/10-bridge.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "$PODS.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
  cat > "$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$NAME
failSwapOn: false
failCgroupV1: false
featureGates: {KubeletInUserNamespace: true}    # forgives what needs CAP_SYS_RESOURCE
clusterDNS: [$NET.2]
clusterDomain: cluster.local
resolvConf: $STATE/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
evictionSoft: {memory.available: 200Mi}
evictionSoftGracePeriod: {memory.available: 1s}
evictionMaxPodGracePeriod: 30
imageGCHighThresholdPercent: 100
YAML
  echo "nameserver 127.0.0.1" > "$STATE/resolv.conf"
  cat > "$STATE/Corefile" <<TXT
cluster.local in-addr.arpa {
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $STATE/admin.conf
    ttl 1
  }
}
TXT
}

first() {          # the node's first process, in its namespaces
  mount --make-rprivate /; mount -t tmpfs tmpfs /run; mkdir -p /run/lock
  mount --bind "$STATE/resolv.conf" /etc/resolv.conf
  for hierarchy in /sys/fs/cgroup/*/; do
    [ -f "$hierarchy/cgroup.clone_children" ] || continue    # cgroup v1 only
    mkdir -p "$hierarchy/$NAME"
    for f in cpuset.cpus cpuset.mems; do [ ! -f "$hierarchy/$f" ] || cat "$hierarchy/$f" > "$hierarchy/$NAME/$f"; done
  done
  ip link set lo up
  until ip link show "$NAME-n" >/dev/null 2>&1; do sleep 0.1; done
  ip addr add "$NET.2/24" dev "$NAME-n"; ip link set "$NAME-n" up; ip route add default via "$NET.1"
  for key in net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables; do
    echo 1 > "/proc/sys/${key//.//}" || echo "cannot set $key"
  done
  cd "$STATE"; pki=$STATE/pki; conf=$STATE/admin.conf
  start() { "$@" >> "$STATE/log/$1.log" 2>&1 & }
  keep() { while :; do "$@" >> "$STATE/log/$1.log" 2>&1 || true; sleep 1; done & }    # a kubelet restarts, as by systemd
  start etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn
  start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$NET.2" \
    --service-cluster-ip-range="$SERVICES.0/24" --authorization-mode=Node,RBAC \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/sa.key" \
    --service-account-signing-key-file="$pki/sa.key"
  start containerd --config "$STATE/containerd.toml"
  until command kubectl --kubeconfig "$conf" get --raw=/readyz >/dev/null 2>&1; do sleep 0.3; done
  start kube-controller-manager --kubeconfig="$conf" --leader-elect=false --root-ca-file="$pki/ca.crt" \
    --service-account-private-key-file="$pki/sa.key"
  start kube-scheduler --kubeconfig="$conf" --leader-elect=false
  keep kubelet --kubeconfig="$conf" --config="$STATE/kubelet.yaml" --root-dir="$STATE/kubelet" \
    --cert-dir="$STATE/kubelet/pki" --hostname-override="$NAME" --node-ip="$NET.2"
  start kube-proxy --kubeconfig="$conf" --proxy-mode=iptables --hostname-override="$NAME" \
    --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
  start coredns -conf "$STATE/Corefile"
  trap 'exit 0' TERM; while :; do wait; sleep 1; done
}

begin() {
  setsid unshare --net --mount --pid --fork --kill-child --mount-proc \
    env FRAZIL_KUBERNETES="$BIN" STATE="$STATE" "$self" first > "$STATE/log/first.log" 2>&1 < /dev/null &
  local outer=$!
  until pid=$(pgrep -P "$outer" | head -1) && [ -n "$pid" ]; do sleep 0.1; done
  echo "$pid" > "$STATE/pid"
  ip link add "$NAME-h" type veth peer name "$NAME-n" netns "$pid"
  ip addr add "$NET.1/24" dev "$NAME-h"; ip link set "$NAME-h" up
  ip route add "$PODS.0/24" via "$NET.2"; ip route add "$SERVICES.0/24" via "$NET.2"
  local s=$SECONDS
  until kubectl wait --for=condition=Ready "node/$NAME" --timeout=5s >/dev/null 2>&1 &&
    kubectl get serviceaccount default >/dev/null 2>&1 && (exec 3<>"/dev/tcp/$NET.2/53") 2>/dev/null; do
    kill -0 "$pid" || { echo "the node ended: see $STATE/log" >&2; exit 1; }
    [ $((SECONDS - s)) -lt 180 ] || { echo "not ready in 180 s: see $STATE/log" >&2; exit 1; }
    sleep 0.5
  done
}

finish() {
  local pid; pid=$(cat "$STATE/pid" 2>/dev/null || true)
  # After a restart of this machine, another process may have this number.
  if [ -n "$pid" ] && grep -qs "$self" "/proc/$pid/cmdline"; then kill -KILL "$pid" || true; fi
  ip link del "$NAME-h" 2>/dev/null || true
  for _ in 1 2 3 4 5 6 7 8; do    # a cgroup can be removed once its processes are gone
    ls -d /sys/fs/cgroup/*/"$NAME" >/dev/null 2>&1 || break
    find /sys/fs/cgroup/*/"$NAME" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.5
  done
}

case ${1:-} in
  up) : "${FRAZIL_KUBERNETES:?}"; certificates; configuration; begin ;;
  first) first ;;
  load) nsenter --target "$(cat "$STATE/pid")" --mount --net --pid \
    ctr --address /run/containerd/containerd.sock --namespace k8s.io images import "$2" ;;
  restart) finish; begin ;;
  down) finish; rm -rf "$STATE" ;;
  *) sed -n '2,13p' "$self"; exit 2 ;;
esac
