module pod-schema

go 1.21
