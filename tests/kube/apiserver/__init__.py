"""The Go module that pins kube-apiserver and etcd; built by `metrics.benches.apiserver`."""
