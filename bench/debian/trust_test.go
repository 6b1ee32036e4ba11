package debian

import "testing"

func TestPipConfig(t *testing.T) {
	got := pipConfig(`:env:.index-url='https://index.example/simple'
:env:.find-links='/opt/wheels'
global.cert='/etc/corp.pem'
global.index-url='https://old.example/simple'
global.timeout='30'
`)
	want := `[global]
cert = /etc/ssl/certs/ca-certificates.crt
index-url = https://index.example/simple
timeout = 30
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
