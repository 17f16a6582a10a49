//go:build tools

// Package apiserver pins the programs of a real control plane for the contract suite. Nothing
// here runs: the blank imports keep them in go.mod and go.sum, from where they are built.
package apiserver

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
