package gc

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// podsPerCall bounds one answer of the API server.
const podsPerCall = 500

// Pods gives texts that hold the digest of every image that a pod of the cluster
// names or runs, in any namespace. It needs to list pods. All errors have exit code
// 1: without the whole list nothing may be removed.
func Pods(ctx context.Context, cluster kubernetes.Interface) ([]string, error) {
	var texts []string
	o := metav1.ListOptions{Limit: podsPerCall}
	for {
		list, err := cluster.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("listing the pods: %w", err)
		}
		for _, pod := range list.Items {
			text, err := json.Marshal([]any{pod.Spec, pod.Status})
			if err != nil {
				return nil, fmt.Errorf("reading the pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
			texts = append(texts, string(text))
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return texts, nil
		}
	}
}
