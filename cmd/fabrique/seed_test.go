package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fabrique/bench/binaries"
	"fabrique/bench/parts"
	"fabrique/bench/script"
)

// TestSeedScripts runs fabrique seed against a real Gitea and a real Kubernetes API.
// Its namespaces are always the same, so there is one script. "make-role PASSWORD" makes
// the Secret that others derive from, or changes its password.
func TestSeedScripts(t *testing.T) {
	ctx := t.Context()
	gitea, kube := parts.Gitea(t), parts.KubeAPI(t)
	bot, err := gitea.CreateUser(ctx, "nobody-in-particular", "read:user")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "scripted"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	programs := binaries.Dir(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/seed",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", programs+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("KUBE", kube.Kubeconfig)
			env.Setenv("ADMIN", gitea.Token.Reveal())
			env.Setenv("BOT", bot.Reveal())
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, _ bool, args []string) { script.Exits(ts, args, gitea.Token, bot) },
			"make-role": func(ts *testscript.TestScript, _ bool, args []string) {
				role := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "role"}, StringData: map[string]string{"username": "app", "password": args[0]}}
				_, err := kube.Client.CoreV1().Secrets("scripted").Create(ctx, role, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					_, err = kube.Client.CoreV1().Secrets("scripted").Update(ctx, role, metav1.UpdateOptions{})
				}
				ts.Check(err)
			},
		},
	})
}
