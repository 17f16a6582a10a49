// Command controllers runs Kubernetes' own controllers of Jobs and StatefulSets, and the one that
// evicts pods from tainted nodes, with their defaults, for tests.
//
// kube-controller-manager would link some 400 packages that the API server does not have; this
// links a handful.
package main

import (
	"context"
	"flag"
	"time"

	"k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1alpha2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	"k8s.io/kubernetes/pkg/features"
)

const workers = 5

func main() {
	kubeconfig := flag.String("kubeconfig", "", "whom to act as, and where")
	gates := flag.String("feature-gates", "", "as of kube-controller-manager")
	flag.Parse()
	if *gates != "" {
		runtime.Must(utilfeature.DefaultMutableFeatureGate.Set(*gates))
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	runtime.Must(err)
	// As kube-controller-manager by default.
	config.QPS, config.Burst = 20, 30
	client := kubernetes.NewForConfigOrDie(config)
	ctx := context.Background()
	factory := informers.NewSharedInformerFactory(client, 12*time.Hour)

	var workloads schedulinginformers.WorkloadInformer
	var groups schedulinginformers.PodGroupInformer
	if utilfeature.DefaultFeatureGate.Enabled(features.WorkloadWithJob) {
		workloads = factory.Scheduling().V1alpha2().Workloads()
		groups = factory.Scheduling().V1alpha2().PodGroups()
	}
	jobs, err := job.NewController(
		ctx, client, factory.Core().V1().Pods(), factory.Batch().V1().Jobs(), workloads, groups)
	runtime.Must(err)
	runtime.Must(controller.AddPodNodeNameIndexer(factory.Core().V1().Pods().Informer()))
	taints, err := tainteviction.New(
		ctx, client, factory.Core().V1().Pods(), factory.Core().V1().Nodes(),
		"taint-eviction-controller")
	runtime.Must(err)
	sets := statefulset.NewStatefulSetController(
		ctx, factory.Core().V1().Pods(), factory.Apps().V1().StatefulSets(),
		factory.Core().V1().PersistentVolumeClaims(), factory.Apps().V1().ControllerRevisions(),
		client)
	factory.Start(ctx.Done())
	go taints.Run(ctx)
	go sets.Run(ctx, workers)
	jobs.Run(ctx, workers)
}
