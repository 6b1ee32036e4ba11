package debian

import "testing"

func TestPipConfig(t *testing.T) {
	env := map[string]string{"PIP_TRUSTED_HOST": "index.example"}
	user := "[global]\nindex-url = https://index.example/simple\n[freeze]\ntimeout = 10\n"
	machine := "# all users\n[global]\ncert = /etc/corp.pem\nindex-url = https://old.example/simple\n[install]\ntimeout=30\nfind-links = /opt/wheels\n"
	got := pipConfig(func(name string) string { return env[name] }, []string{user, machine})
	want := `[global]
cert = /etc/ssl/certs/ca-certificates.crt
index-url = https://index.example/simple
trusted-host = index.example
timeout = 30
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
