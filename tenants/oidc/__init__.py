"""Single sign-on with OpenID Connect: people who sign in at a provider are signed in to Kant.

`tenants.services.sign_in` turns the provider's claims into accounts and roles.
"""
